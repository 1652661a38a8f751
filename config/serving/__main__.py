"""`python -m config.serving HOST PORT`: the event streams, under the same limits as the other servers."""

import sys

import uvicorn

# First: it chooses the settings that the protocol is imported with.
from config.asgi import application
from config.serving.workers import SERVER_OPTIONS

if __name__ == "__main__":
    host, port = sys.argv[1:]
    uvicorn.run(application, host=host, port=int(port), **SERVER_OPTIONS)
