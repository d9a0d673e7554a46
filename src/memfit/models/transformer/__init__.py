"""A small transformer that every named model is an instance of.

::

    tokens ──> Embedding (+ positions) ──> Block x layers ──> norm ──> head ──> logits            model.py
                                            │
                                            ├─ x + Attention(norm(x))     grouped queries or latent ones, rotary, fused attention
                                            └─ x + MLP(norm(x))           SwiGLU, GELU, or experts  experts.py

    splitting.py   how all that is split over GPUs, for memfit.parallel

It uses memory as today's training code does: fused norms, fused attention that keeps no matrix of scores, rotary positions in the
type of the computation. It trains for real; its weights start as torch's modules start them.
"""

from memfit.models.transformer.model import Transformer

__all__ = ["Transformer"]
