"""Seconds of what nets do with images, sound and video: convolutions, norms over channels, pooling, resizing.

::

    a convolution  ->  work.py: which of three computations, over which sizes
                       depthwise.py, if every channel has its own kernel, otherwise convolution.py
    other layers   ->  layers.py

All of it is fitted to ``benchmarks/truth/convolution_times.json.gz``; ``benchmarks/timing/convolution_times.py`` shows how well.
"""
