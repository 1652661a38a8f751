"""`python -m config.serving HOST PORT`: serve the event streams, with the same limits as the other
servers."""

import sys

import uvicorn

# Must come first: it selects the settings with which the protocol is imported.
from config.asgi import application
from config.serving.workers import SERVER_OPTIONS

if __name__ == "__main__":
    host, port = sys.argv[1:]
    uvicorn.run(application, host=host, port=int(port), **SERVER_OPTIONS)
