"""A batch size is looked for from above: whatever runs out of memory is tried again with a smaller one."""

import torch
from accelerate.utils import find_executable_batch_size
from torch import nn

torch.manual_seed(12)


@find_executable_batch_size(starting_batch_size=4096)
def train(batch_size):
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.randn(batch_size, 512, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return batch_size


print("batch size", train())
