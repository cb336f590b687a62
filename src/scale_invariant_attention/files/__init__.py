"""Files that survive kills, power cuts and full disks, and tell when they have been damaged."""

from .durable import (
    FileRecord,
    clear_partial_files,
    damage_of,
    replace_file,
    sync_folder,
    write_new_file,
)
from .locking import FolderInUseError, locked
from .space import check_writable

__all__ = [
    "FileRecord",
    "FolderInUseError",
    "check_writable",
    "clear_partial_files",
    "damage_of",
    "locked",
    "replace_file",
    "sync_folder",
    "write_new_file",
]
