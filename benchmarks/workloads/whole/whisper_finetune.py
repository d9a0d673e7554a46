"""A small Whisper trained on transcripts of many lengths, and asked for text greedily after every 15 steps."""

import torch
from common import lengths
from transformers import WhisperConfig, WhisperForConditionalGeneration

torch.manual_seed(2)
config = WhisperConfig(
    d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6,
    encoder_ffn_dim=1536, decoder_ffn_dim=1536, dropout=0.1,
)  # fmt: skip
model = WhisperForConditionalGeneration(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
words = lengths(60, seed=8, mean=4.2, top=400)
for step, length in enumerate(words):
    features = torch.randn(8, 80, 3000).cuda()
    labels = torch.randint(0, 50000, (8, length)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_features=features, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 15 == 14:
        model.eval()
        with torch.no_grad():
            heard = model.get_encoder()(torch.randn(4, 80, 3000, device="cuda"))
            said = torch.zeros(4, 1, dtype=torch.long, device="cuda")
            for _ in range(30):
                logits = model(encoder_outputs=heard, decoder_input_ids=said, use_cache=False).logits
                said = torch.cat((said, logits[:, -1:].argmax(-1)), 1)
        print(step, loss.item(), said.shape)
        model.train()
