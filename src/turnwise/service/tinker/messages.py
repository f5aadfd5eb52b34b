"""The protobuf messages of Tinker's API: forward_backward requests, and results of forward_backward and sample.

Built from the numbers and types of their fields (SDK 0.36, tinker/proto/tinker_public_pb2.py), so that the server does
not need the SDK.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

TYPES = {"double": 1, "int64": 3, "int32": 5, "bool": 8, "string": 9, "message": 11, "bytes": 12, "uint32": 13}
LABELS = {"": 1, "optional": 1, "repeated": 3}
SCHEMA = """
SampleResponse         repeated SampledSequence sequences=1; optional bytes prompt_logprobs=2;
                       TopkLogprobs topk_prompt_logprobs=3; int32 prompt_cache_hit_tokens=4;
                       Tensor target_prompt_logprobs=5; PromptAltTokens prompt_alt_tokens=6
SampledSequence        int32 stop_reason=1; bytes tokens=2; optional bytes logprobs=3;
                       TopkLogprobs topk_sampled_logprobs=4
PromptAltTokens        Tensor tokens=1; Tensor logprobs=2
TopkLogprobs           bytes token_ids=1; bytes logprobs=2; uint32 k=3; uint32 length=4
SparseCsr              bytes values=1; bytes crow_indices=2; bytes col_indices=3
Tensor                 optional bytes dense=1; SparseCsr sparse_csr=2; int32 dtype=3; repeated int64 shape=4
BatchedTensor          bytes data=1; bytes offsets=2; int32 dtype=3; repeated int64 trailing_shape=4
ArrayRecord            string type_tag=1; map BatchedTensor fields=2; int64 num_datums=3
ForwardBackwardOutput  string loss_fn_output_type=1; repeated ArrayRecord loss_fn_outputs=2; map double metrics=3
ForwardBackwardRequest string model_id=1; int32 seq_id=2; repeated Datum data=3; string loss_fn=4;
                       map double loss_fn_config=5; bool forward_only=6; map LossConfigValue loss_fn_config_v2=7
LossConfigValue        optional double number=1; optional string text=2
Datum                  repeated Chunk model_input=1; map Tensor loss_fn_inputs=2
Chunk                  EncodedTextChunk encoded_text=1; Other image=2; Other dmel=3
EncodedTextChunk       bytes tokens=1
Other
"""
"""One message per entry: [optional|repeated|map] TYPE NAME=NUMBER. Enums are int32, which has the same encoding.
Provenance of tokens and the contents of images are left out: unknown fields are skipped."""
PACKAGE = "turnwise.tinker"
FLOAT32, INT64, INT32, BFLOAT16 = 1, 2, 3, 4
"""`dtype` of tensors."""
STOP, LENGTH = 0, 1
"""`stop_reason` of sequences."""


def _build_classes() -> dict[str, type[Any]]:
    file = descriptor_pb2.FileDescriptorProto(name="turnwise_tinker.proto", package=PACKAGE, syntax="proto3")
    current = file
    for line in SCHEMA.strip().splitlines():
        name, _, rest = line.partition(" ") if not line.startswith(" ") else ("", "", line)
        if name:
            current = file.message_type.add(name=name)
        for field in filter(None, (part.strip() for part in rest.split(";"))):
            _add_field(current, *field.rpartition("=")[::2])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}


def _add_field(message: Any, declaration: str, number: str) -> None:
    *labels, kind, name = declaration.split()
    label = labels[0] if labels else ""
    field = message.field.add(name=name, number=int(number), label=LABELS["repeated" if label == "map" else label])
    if label == "map":
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, "string key", "1")
        _add_field(entry, f"{kind} value", "2")
        kind = f"{message.name}.{entry.name}"
    field.type = TYPES.get(kind, TYPES["message"])
    if kind not in TYPES:
        field.type_name = f".{PACKAGE}.{kind}"
    if label == "optional":
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


MESSAGES = _build_classes()
"""Message classes by name."""
