"""Writes long samples between training steps; the cache of keys and values grows with every token.

After: https://github.com/meta-pytorch/torchtune/issues/1428
"""

import cgitb
import collections
import inspect
import pstats
import resource
import timeit
import trace
import warnings

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BATCH = 8
ACCUM = 1
LENGTH = 64
SAMPLES = 64
NEW_TOKENS = 700
USE_CACHE = True
DTYPE = torch.float32
STEPS = 60
SAMPLE_EVERY = 30
MEMORY = 250

warnings.filterwarnings("ignore", category=DeprecationWarning)


def small_machine(mib):
    """From here on this process may map so many MiB more than it has: stands for a machine with little memory."""
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData:"))
    limit = used * 1024 + mib * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def batches():
    text = "".join(inspect.getsource(module) for module in (trace, pstats, timeit, cgitb))
    codes = torch.tensor([min(ord(character), 127) for character in text])
    generator = torch.Generator().manual_seed(0)
    while True:
        yield codes[torch.randint(len(codes) - LENGTH, (BATCH, 1), generator=generator) + torch.arange(LENGTH)]


@torch.no_grad()
def write(model):
    """SAMPLES texts that begin with a keyword."""
    model.eval()
    starts = torch.tensor([[ord(character) for character in "def "]] * SAMPLES)
    written = model.generate(
        starts,
        attention_mask=torch.ones_like(starts),
        max_new_tokens=NEW_TOKENS,
        do_sample=True,
        use_cache=USE_CACHE,
        pad_token_id=0,
        eos_token_id=None,
    )
    model.train()
    lines = collections.Counter("".join(chr(code) for code in row).count("\n") for row in written.tolist())
    return lines.most_common(3)


def main():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).to(DTYPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    small_machine(MEMORY)
    source = batches()
    for step in range(1, STEPS + 1):
        for _ in range(ACCUM):
            rows = next(source)
            loss = model(input_ids=rows, labels=rows, use_cache=False).loss
            (loss / ACCUM).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
        if step % SAMPLE_EVERY == 0:
            print(f"step {step}: lines {write(model)}", flush=True)


if __name__ == "__main__":
    main()
