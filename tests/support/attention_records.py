"""Synthetic attention records, in the form written by `lab.experiments.attention`."""

from small_records import record

LENGTHS = (256, 1024, 4096)


def attention_record(scheme, layers=2, heads=2):
    """A record with recognisable values: shares and entropies grow with length."""
    entries = [_entry(length, layers, heads) for length in LENGTHS]
    return {**record(scheme, 0, (1.0, 2.0, 3.0)), "attention": entries}


def _entry(length, layers, heads):
    edges = [0, 10, 100, *([1000] if length > 1000 else []), length]
    ranges = len(edges) - 1

    def estimate(mean):
        return {"mean": mean, "standard_error": 0.01}

    return {
        "length": length,
        "edges": edges,
        "overall": {
            "share": [estimate(1 / ranges)] * ranges,
            "entropy": [estimate(float(index)) for index in range(ranges)],
            "global_entropy": [estimate(length / 1000)],
            "recent_share": [estimate(100 / length)],
        },
        "layers": [_layer(layer, heads) for layer in range(layers)],
    }


def _layer(layer, heads):
    normal = [-3.0, 0.0, 3.0]
    scores = {
        "mean": [0.5] * heads,
        "variance": [4.0] * heads,
        "quantiles": [[2 * it + 0.5 for it in normal]] * heads,
        "normal_quantiles": normal,
        "pairs": 100,
    }
    return {"layer": layer, "scores": scores, "unrotated_scores": scores}
