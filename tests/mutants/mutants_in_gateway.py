"""Mutants of turnwise.gateway: captured calls and dialects."""

from mutant_for_tests import mutants

MESSAGES = ("gateway/test_anthropic_messages.py", "gateway/test_dialects_round_trip.py")
RESPONSES = ("gateway/test_openai_responses.py", "gateway/test_dialects_round_trip.py")
HOSTILE = ("gateway/test_dialects_hostile.py",)
CAPTURE = ("gateway/test_capture.py",)

IN_GATEWAY = (
    *mutants(
        "gateway/tree.py",
        CAPTURE,
        ("an extended context is extended again", "self.branch.calls[-1] is self", "True"),
        ("a running call's context is extended again", "return not self.branch.busy and", "return"),
        ("branches share a random stream", "replace(self._key, branch=stream)", "replace(self._key, branch=0)"),
        ("tools are not compared", "= digest_tools(tools), None, 0", "= digest_tools(()), None, 0"),
    ),
    *mutants(
        "gateway/sessions.py",
        CAPTURE,
        ("an open session gets the whole context", "context[len(context) - appended :]", "context"),
        ("sessions are not limited", "> self._max_open", "> 2 * self._max_open"),
        ("caches outlive their weights", "await self.close(*self._idle)", "pass"),
    ),
    *mutants(
        "gateway/conversation.py",
        CAPTURE,
        ("re-serialised arguments diverge", "canonical_json(call.arguments).encode()", "call.arguments.encode()"),
        ("stripped replies diverge", "content = content.strip()", "pass"),
        ("ids of calls are compared", "numbers.get(message.call_id, message.call_id)", "message.call_id"),
    ),
    *mutants(
        "gateway/anthropic_messages.py",
        MESSAGES,
        ("the billing header is shown", "if not str(row", "if str(row"),
        ("prefill is sampled from", 'messages[-1].role == "assistant"', 'messages[-1].role == "system"'),
        ("thinking is shown unasked", 'not in ("", "disabled")', 'not in ("disabled",)'),
        ("thinking is part of the text", '"redacted_thinking", "tool_use")', '"tool_use")'),
        ("invalid arguments are not unwrapped", "if len(given) == 1 else None", "if len(given) == 2 else None"),
        ("NaN is sent as JSON", "allow_nan=False).encode()", "allow_nan=True).encode()"),
        ("surrogates are sent as JSON", "ensure_ascii=False, allow_nan", "allow_nan"),
        ("a reply may have no block", "or not reply.message.tool_calls:", "or False:"),
        ("texts after tool results are lost", "start = position + 1", "start = len(blocks)"),
        ("tools may be called although none", 'return () if choice == "none"', 'return () if choice == "any"'),
    ),
    *mutants(
        "gateway/openai_responses.py",
        RESPONSES,
        ("calls lose their message", "replace(messages[-1], tool", "replace(messages[0], tool"),
        ("calls of two replies are merged", "        before = kind\n", '        before = "message"\n'),
        ("history without the reply", ", *_output(reply, {})]", "]"),
        ("history is forgotten", "[*self._responses[previous], *_items(body)]", "[*_items(body)]"),
        ("custom input stays JSON", "return text if isinstance(text, str) else arguments", "return arguments"),
        ("namespaces are lost", 'item["namespace"] = tool.namespace', "pass"),
        ("truncated replies are complete", '"incomplete" if cut else "completed"', '"completed"'),
        ("hosted tools are refused", "if kind not in OMITTED_TOOLS", "if kind"),
    ),
    *mutants(
        "gateway/fields.py",
        (*HOSTILE, *MESSAGES, *RESPONSES),
        ("texts are glued together", "{before.text}\\n{part.text}", "{before.text}{part.text}"),
        ("base64 is not checked", "validate=True", "validate=False"),
        ("True is a number of tokens", "(found, bool) or not isinstance(found, int) or", "(found, str) or"),
        ("schemas are accepted", '("text", "json_object")', '("text", "json_schema")'),
        ("refused fields are accepted", "if body.get(name):", "if not body.get(name, 1):"),
    ),
)
