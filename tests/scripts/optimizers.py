"""Two optimizers, groups, hooks, a schedule, a GradScaler that skips a step, clipping, and state saved and loaded."""

import copy

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    adam = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0.01
    )
    scale = nn.Parameter(torch.tensor(1.0))
    sgd = torch.optim.SGD([scale], lr=0.01, momentum=0.9)
    calls = {"before": 0, "after": 0}
    adam.register_step_pre_hook(lambda *_: calls.update(before=calls["before"] + 1))
    adam.register_step_post_hook(lambda *_: calls.update(after=calls["after"] + 1))
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 0.02, total_steps=30)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
    saved = None
    for step in range(24):
        x = torch.randn(32, 8)
        loss = (model(x) * scale - x.sum(1, keepdim=True)).square().mean()
        adam.zero_grad(), sgd.zero_grad()
        scaler.scale(loss).backward()
        if step == 12:
            model[0].weight.grad[0, 0] = torch.inf
        scaler.unscale_(adam)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(adam), scaler.step(sgd), scaler.update()
        schedule.step()
        if step == 8:
            saved = copy.deepcopy(adam.state_dict())
        if step == 16:
            adam.load_state_dict(saved)
        print(step, loss.item(), norm.item(), scaler.get_scale(), calls, adam.param_groups[0]["lr"])
    print([float(adam.state[p]["step"]) for p in (*matrices, *rest)], scale.item())
    print(sorted(adam.state_dict()["param_groups"][0]), sorted(adam.__dict__), sum(p.sum().item() for p in rest))


if __name__ == "__main__":
    main()
