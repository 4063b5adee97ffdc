"""How an answer is told: pieces of the engine's, read as the client asked for them, in OpenAI's objects, as one body or
as a stream of events.
"""
