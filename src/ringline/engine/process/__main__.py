"""`python -m ringline.engine.process FD`: an engine's process; `client.EngineProcess` starts it."""

from ringline.engine.process.server import main

if __name__ == "__main__":
    main()
