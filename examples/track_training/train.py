"""Track three training steps of a small transformer, on whatever device there is, and look at where the memory went.

python train.py            # writes run.memfit
memfit show run.memfit
"""

import torch
import torch.nn.functional as F
from torch import nn

import memfit


class Transformer(nn.Module):
    def __init__(self, vocab: int = 1000, dim: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, nhead=4, dim_feedforward=4 * dim, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 1000, (8, 128), device=device)

    with memfit.track(model, optimizer, tokens, save_to="run.memfit") as tracker:
        for _ in range(3):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            del logits
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    peak = memfit.build_report(tracker.ledger).devices[0].peak
    print(f"peak {memfit.format_bytes(peak.size_bytes)} on {peak.device}, in step {peak.step}; run `memfit show run.memfit`")


if __name__ == "__main__":
    main()
