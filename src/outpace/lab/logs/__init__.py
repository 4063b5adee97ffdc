"""Logs of other servers, read line by line into records; what cannot be read is counted, never guessed."""
