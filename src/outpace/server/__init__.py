"""The OpenAI-compatible server: HTTP in one process, the engine in another, typed messages between them.

    http ─► api ─┬─► asking ─────► engine_client ══ wire ══ engine_process ─► Engine
                 └── answering ◄──┘

Whatever kills the engine leaves the HTTP side standing: it says so, keeps what was not begun, and starts a new engine.
"""
