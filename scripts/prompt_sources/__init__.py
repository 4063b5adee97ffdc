"""Where training prompts come from: one file a source, each a generator of JSON-able prompts."""
