"""The web page: drop an image, see it restored, ask how sure that is; and watch a training.

Everything but `page` and `serve` is plain Python and knows nothing of Gradio.
"""
