"""Read and tamper with the files of a saved model."""

import hashlib
import json

from scale_invariant_attention.files.manifest import signed_text

CONFIG = {"scheme": "rope", "layers": 2, "rate": 1e-3, "dims": [1, 2], "nested": {"none": None}}


def weights_files(folder):
    return sorted(folder.glob("model-*.safetensors"))


def document(folder):
    return json.loads((folder / "config.json").read_text())


def rewrite(folder, **changed):
    """Change config.json, with a valid hash."""
    (folder / "config.json").write_bytes(signed_text(document(folder) | changed))


def put_weights(folder, data):
    """Replace the only weights file by other bytes, and update its recorded size and hash."""
    (file,) = weights_files(folder)
    file.write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    rewrite(folder, files={file.name: {"bytes": len(data), "sha256": sha256}})
