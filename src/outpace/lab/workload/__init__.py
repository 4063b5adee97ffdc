"""What is asked, and how it is counted: evaluation prompts, loops in answers, accept length over sets."""
