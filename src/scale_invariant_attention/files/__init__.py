"""Files and folders that survive kills, power cuts and full disks, and show when they are damaged."""

from ._durable import (
    PROBE_NAME,
    FileRecord,
    FolderInUseError,
    amount,
    cache_folder,
    check_writable,
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

__all__ = [
    "PROBE_NAME",
    "FileRecord",
    "FolderInUseError",
    "amount",
    "cache_folder",
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
