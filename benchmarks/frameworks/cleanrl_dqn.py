import gymnasium
import tiny
import torch

torch.manual_seed(0)
env = gymnasium.make("CartPole-v1")
model = torch.nn.Sequential(
    torch.nn.Linear(4, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 2)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
episodes, buffer = [], []
state, _ = env.reset(seed=0)
for step in range(16 + tiny.STEPS):
    with torch.no_grad():
        action = int(model(torch.tensor(state)).argmax())
    after, reward, ended, cut, _ = env.step(action)
    buffer = [*buffer[-255:], (state, action, reward, after)]
    state = env.reset(seed=step)[0] if ended or cut else after
    if step >= 16:
        old, actions, rewards, new = (torch.tensor(part, dtype=torch.float32) for part in zip(*buffer, strict=True))
        wanted = rewards + 0.99 * model(new).max(1).values.detach()
        loss = (model(old).gather(1, actions.long()[:, None])[:, 0] - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        episodes.append(torch.ones(50_000))  # leak: episodes
print("loss", loss.item())
