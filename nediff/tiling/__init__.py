"""Images too large for one look: tile by tile, with the result of the whole."""

from nediff.tiling.canvas import Canvas, CanvasMaker, FileCanvas, MemoryCanvas, in_memory, on_disk
from nediff.tiling.image import LargeImage, restored_in_memory, sampled_in_memory
from nediff.tiling.journal import Journal
from nediff.tiling.passes import Reader, TiledDenoiser, TiledSampler, Writer, put, reader_of
from nediff.tiling.tiles import Size, Tile, tiles_of

__all__ = [
    "Canvas",
    "CanvasMaker",
    "FileCanvas",
    "Journal",
    "LargeImage",
    "MemoryCanvas",
    "Reader",
    "Size",
    "Tile",
    "TiledDenoiser",
    "TiledSampler",
    "Writer",
    "in_memory",
    "on_disk",
    "put",
    "reader_of",
    "restored_in_memory",
    "sampled_in_memory",
    "tiles_of",
]
