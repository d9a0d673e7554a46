"""A picture that is the parameter: features of a VGG, products of features, and a picture that grows between stages."""

import torch
import torchvision
from torch.nn import functional as F

torch.manual_seed(32)
LAYERS = (1, 6, 11, 20, 29)


def features(net, picture):
    found = []
    for number, layer in enumerate(net):
        picture = layer(picture)
        if number in LAYERS:
            found.append(picture)
    return found


def gram(x):
    flat = x.flatten(2)
    return flat @ flat.transpose(1, 2) / flat.shape[-1]


net = torchvision.models.vgg19(weights=None).features[:30].cuda().eval()
for layer in net:
    if isinstance(layer, torch.nn.ReLU):
        layer.inplace = False
net.requires_grad_(False)
content, style = torch.rand(1, 3, 768, 768).cuda(), torch.rand(1, 3, 512, 512).cuda()
with torch.no_grad():
    wanted_style = [gram(each) for each in features(net, style)]
picture = F.interpolate(content, size=(256, 256), mode="bilinear", align_corners=False)
for size in (256, 384, 512, 768):
    picture = F.interpolate(picture.detach(), size=(size, size), mode="bilinear", align_corners=False).requires_grad_()
    with torch.no_grad():
        wanted = features(net, F.interpolate(content, size=(size, size), mode="bilinear", align_corners=False))[3]
    optimizer = torch.optim.Adam([picture], lr=0.02)
    for _ in range(25):
        optimizer.zero_grad()
        found = features(net, picture)
        likeness = F.mse_loss(found[3], wanted)
        manner = sum(F.mse_loss(gram(each), other) for each, other in zip(found, wanted_style, strict=False))
        smooth = (picture[..., 1:] - picture[..., :-1]).abs().mean() + (picture[..., 1:, :] - picture[..., :-1, :]).abs().mean()
        loss = likeness + 1e3 * manner + 0.1 * smooth
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            picture.clamp_(0, 1)
    print(size, loss.item())
