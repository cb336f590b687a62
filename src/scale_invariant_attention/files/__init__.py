"""Files and folders that survive kills, power cuts and full disks, and show when they are damaged."""

from ._durable import (
    FileRecord,
    FolderInUseError,
    clear_partial,
    finish_growing,
    growing_path,
    locked,
    partial_path,
    remove_folder,
    replace_file,
    sync_folder,
    write_folder,
    write_new_file,
)
from .space import check_writable

__all__ = [
    "FileRecord",
    "FolderInUseError",
    "check_writable",
    "clear_partial",
    "finish_growing",
    "growing_path",
    "locked",
    "partial_path",
    "remove_folder",
    "replace_file",
    "sync_folder",
    "write_folder",
    "write_new_file",
]
