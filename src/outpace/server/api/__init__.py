"""The application: OpenAI's endpoints and our own, the document that describes them, and the status page."""
