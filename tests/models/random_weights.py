"""A llama model of random weights, written in a moment: a real server, real tokens, nonsense words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WIDTH, LAYERS, HEADS, INNER = 256, 4, 4, 512
CONTEXT = 4096
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


def write_weights(path: Path) -> None:
    import gguf
    import numpy

    writer: Any = gguf.GGUFWriter(str(path), "llama")  # Any: its methods are typed by halves
    words = ["\u2581" + "".join(chr(97 + number // 26**place % 26) for place in range(3)) for number in range(253)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(words)]
    for add, value in (
        (writer.add_context_length, CONTEXT),
        (writer.add_embedding_length, WIDTH),
        (writer.add_block_count, LAYERS),
        (writer.add_feed_forward_length, INNER),
        (writer.add_head_count, HEADS),
        (writer.add_head_count_kv, HEADS),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_dimension_count, WIDTH // HEADS),
        (writer.add_vocab_size, len(tokens)),
        (writer.add_tokenizer_model, "llama"),
        (writer.add_token_list, tokens),
        (writer.add_token_scores, [0.0] * len(tokens)),
        (writer.add_token_types, kinds),
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
        (writer.add_unk_token_id, 0),
        (writer.add_chat_template, TEMPLATE),
    ):
        add(value)
    random: Any = numpy.random.default_rng(0)  # Any: as above

    def matrix(rows: int, columns: int) -> Any:  # Any: an array
        return (random.standard_normal((rows, columns)) * 0.05).astype(numpy.float32)

    ones = numpy.ones(WIDTH, numpy.float32)
    tensors: dict[str, Any] = {  # Any: arrays
        "token_embd": matrix(len(tokens), WIDTH),
        "output_norm": ones,
        "output": matrix(len(tokens), WIDTH),
    }
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"blk.{layer}.{name}"] = matrix(WIDTH, WIDTH)
        tensors |= {f"blk.{layer}.attn_norm": ones, f"blk.{layer}.ffn_norm": ones}
        tensors |= {f"blk.{layer}.{name}": matrix(INNER, WIDTH) for name in ("ffn_gate", "ffn_up")}
        tensors[f"blk.{layer}.ffn_down"] = matrix(WIDTH, INNER)
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
