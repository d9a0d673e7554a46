"""Self-distillation: large crops go through a teacher and a student, small ones through the student alone."""

import copy

import torch
from torch import nn
from transformers import ViTConfig, ViTModel

torch.manual_seed(9)
config = ViTConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536, image_size=224)
student = ViTModel(config, add_pooling_layer=False).cuda()
teacher = copy.deepcopy(student).requires_grad_(False)
head, teachers_head = nn.Linear(384, 8192).cuda(), nn.Linear(384, 8192).cuda().requires_grad_(False)
optimizer = torch.optim.AdamW([*student.parameters(), *head.parameters()], lr=1e-4)


def look(model, head, crops):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return head(model(crops, interpolate_pos_encoding=True).last_hidden_state[:, 0])


for step in range(60):
    large = torch.randn(32, 3, 224, 224, device="cuda")
    small = torch.randn(32 * (2 + step // 20), 3, 96, 96, device="cuda")
    with torch.no_grad():
        wanted = look(teacher, teachers_head, large).softmax(-1)
    loss = -(wanted * look(student, head, large).log_softmax(-1)).sum(-1).mean()
    parts = look(student, head, small).log_softmax(-1).view(-1, 32, 8192)
    loss = loss - (wanted * parts).sum(-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for kept, new in zip(teacher.parameters(), student.parameters(), strict=True):
            kept.mul_(0.99).add_(new, alpha=0.01)
