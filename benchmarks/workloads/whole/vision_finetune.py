"""A ViT in two stages: the head alone, then all of it with larger images; an average of weights, and validation."""

import copy

import torch
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(0)
model = ViTForImageClassification(ViTConfig(num_hidden_layers=8, num_labels=100)).cuda()
average = copy.deepcopy(model).requires_grad_(False)


def train(size, steps, batch, weights):
    optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.9)
    for _ in range(steps):
        images, labels = torch.randn(batch, 3, size, size).cuda(), torch.randint(0, 100, (batch,)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(images, labels=labels, interpolate_pos_encoding=True).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.01)
    average.eval()
    with torch.inference_mode():
        for _ in range(4):
            average(torch.randn(2 * batch, 3, size, size).cuda(), interpolate_pos_encoding=True)


model.requires_grad_(False)
model.classifier.requires_grad_(True)
train(224, 60, 32, model.classifier.parameters())
model.requires_grad_(True)
train(288, 60, 24, model.parameters())
torch.save(average.state_dict(), "average.pt")
