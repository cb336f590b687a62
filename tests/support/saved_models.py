"""Read and tamper with the files of a saved model."""

import hashlib
import json

CONFIG = {"scheme": "rope", "layers": 2, "rate": 1e-3, "dims": [1, 2], "nested": {"none": None}}


def weights_files(folder):
    return sorted(folder.glob("model-*.safetensors"))


def document(folder):
    return json.loads((folder / "config.json").read_text())


def rewrite(folder, **changed):
    (folder / "config.json").write_text(json.dumps(document(folder) | changed))


def put_weights(folder, data):
    """Replace the only weights file by other bytes, and update its recorded size and hash."""
    (file,) = weights_files(folder)
    file.write_bytes(data)
    (entry,) = document(folder)["weights"]
    sha256 = hashlib.sha256(data).hexdigest()
    rewrite(folder, weights=[entry | {"bytes": len(data), "sha256": sha256}])
