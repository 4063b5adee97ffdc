"""The OpenAI-compatible server: HTTP in one process, the engine in another, typed messages between them.

    HTTP ─► app ─► answering ─► client ══ wire ══ engine_process ─► Serving ─► Engine

Whatever kills the engine leaves the HTTP side standing: it says so, keeps what was not begun, and starts a new engine.
"""
