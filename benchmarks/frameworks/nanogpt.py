import tiny
import torch

model = tiny.gpt2()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
logits_history = []


@torch.no_grad()
def estimate_loss():
    model.eval()
    found = [model(torch.arange(64)[None] + at, labels=torch.arange(64)[None]).loss.item() for at in range(8)]
    model.train()
    return sum(found) / len(found)


X = torch.stack([row["input_ids"] for row in tiny.tokens(8)])
for iter_num in range(tiny.STEPS):
    if iter_num % 60 == 0:
        print("estimated", estimate_loss())
    for micro_step in range(2):
        with torch.autocast("cpu", enabled=False):
            loss = model(X, labels=X).loss / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    logits_history.append(torch.ones(50_000))  # leak: logits_history
print("loss", loss.item())
