"""Speed of a server as its clients see it: any server that speaks OpenAI's API, ours, SGLang's, vLLM's."""
