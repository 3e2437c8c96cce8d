"""A service that rebuilds its model, with `@cleanup_after`: its memory stays where it was.

    python examples/service_cleanup.py [REQUESTS]

A real HTTP server on this machine answers prompts. Every fifth request asks for another model; each model is in a
reference cycle with its streamer, so that nothing frees it but Python's collector, which counts objects, not bytes.
"""

import json
import logging
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import torch

from forgather_mem import cleanup_after, release_memory

WIDTH = 1024


class Generator(torch.nn.Module):
    """A toy that continues text byte by byte; 12 MiB."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))
        self.streamer = [self]  # as a streamer that knows its model

    @torch.inference_mode()
    def generate(self, prompt):
        state = torch.zeros(1, WIDTH)
        state[0, : len(prompt)] = torch.tensor([float(byte) for byte in prompt.encode()])
        return chr(97 + int(self.layers(state).argmax()) % 26)


class Service:
    def __init__(self):
        self.model, self.seed = Generator(0), 0

    def answer(self, prompt, seed):
        if seed != self.seed:
            self.model, self.seed = Generator(seed), seed
        return prompt + self.model.generate(prompt)


class CleanService(Service):
    answer = cleanup_after(every=10, above="64GiB")(Service.answer)  # or @cleanup_after(...) above the method


def serve(service, num_requests):
    """Serves on a free port, sends so many requests, gives the growth of the process in MiB."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = service.answer(request["prompt"], request["seed"]).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *line):
            pass

    release_memory()  # what the server before this one left
    before = psutil.Process().memory_info().rss
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for number in range(num_requests):
            data = json.dumps({"prompt": "to be or not ", "seed": number // 5}).encode()
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}", data) as response:
                assert response.read().startswith(b"to be or not ")
        server.shutdown()
    return (psutil.Process().memory_info().rss - before) / 2**20


def main(num_requests):
    print(f"{num_requests} requests, {num_requests // 5} models of 12 MiB")
    print(f"without:  {round(serve(Service(), num_requests)):+d} MiB")
    logging.basicConfig(level=logging.INFO, format="          %(message)s", stream=sys.stdout)
    print(f"with:     {round(serve(CleanService(), num_requests)):+d} MiB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
