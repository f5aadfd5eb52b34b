"""Mutants of turnwise.gateway: captured calls and dialects."""

from mutant_for_tests import mutants

MESSAGES = ("gateway/test_anthropic_messages.py", "gateway/test_dialects_round_trip.py")
RESPONSES = ("gateway/test_openai_responses.py", "gateway/test_dialects_round_trip.py")
HOSTILE = ("gateway/test_dialects_hostile.py",)
CAPTURE = ("gateway/test_capture.py",)
RECORDS = ("gateway/test_episode_records.py",)
SERVER = ("gateway/test_gateway_server.py",)
LIMITS = ("gateway/test_request_limits.py",)
STORE = ("gateway/test_call_store.py",)

IN_GATEWAY = (
    *mutants(
        "gateway/tree.py",
        CAPTURE,
        ("an extended context is extended again", "self.branch.calls[-1] is self", "True"),
        ("a running call's context is extended again", "return not self.branch.busy and", "return"),
        ("branches share a random stream", "replace(self._key, branch=stream)", "replace(self._key, branch=0)"),
    ),
    *mutants(
        "gateway/tree.py",
        RECORDS,
        (
            "turns are in the order of branches",
            "sorted(used, key=lambda branch: branch.calls[-1].stored.number)",
            "used",
        ),
        (
            "a branch has sampled its last call only",
            "sum(len(branch_call.completion.ids) for branch_call in call.branch.calls)",
            "len(call.completion.ids)",
        ),
        ("equal branches share a random stream", "conversation.hex(), equal)", "conversation.hex(), 0)"),
        ("a reply is continued at any equal one", "return max(equal, key=rank)", "return min(equal, key=rank)"),
        ("restored branches share a number", "self._numbers = max(self._numbers, branch.number + 1)", "pass"),
        ("the branches in use are forgotten", "branch.calls[-1].stored.number)", "-branch.calls[-1].stored.number)"),
    ),
    *mutants(
        "gateway/capture.py",
        (*RECORDS, *CAPTURE),
        (
            "the caller's token limit overrides",
            "min(enforced.max_tokens, left, request.max_tokens or left)",
            "min(left, request.max_tokens or enforced.max_tokens)",
        ),
        ("the caller's stop strings override", "(*enforced.stop, *request.stop)", "(request.stop or enforced.stop)"),
        ("restored calls are numbered again", "self._count = stored.number + 1", "pass"),
        (
            "a retry gets the earliest answer",
            "in reversed(self._requests.get(name, ())):",
            "in self._requests.get(name, ()):",
        ),
        (
            "rewards of calls count twice",
            'self.rewards.get("", 0.0) if self.rewards',
            "sum(self.rewards.values()) if self.rewards",
        ),
        ("restored rewards are lost", "self.rewards = await self._store.rewards(self.id)", "pass"),
        ("rewards of unknown calls are accepted", "if call and all(", "if call and not all("),
        ("errors of the caller fail the episode", "and not isinstance(failure, GatewayError)", "and True"),
        ("a failed request answers its retries", "                same.remove(pending)\n", "                pass\n"),
        ("rewards are not written", "await self._store.set_reward(self.id, call, reward)", "pass"),
    ),
    *mutants(
        "gateway/capture.py",
        RECORDS,
        ("a prompt of too many characters does not overflow", "self.overflowed = True", "pass"),
        within="_locate",
    ),
    *mutants(
        "gateway/capture.py",
        RECORDS,
        ("a prompt of too many tokens does not overflow", "self.overflowed = True", "pass"),
        within="_sampling",
    ),
    *mutants(
        "gateway/recording.py",
        (*RECORDS, *CAPTURE),
        (
            "usage counts new tokens only",
            'prompt_tokens=stored.details["prompt_tokens"]',
            "prompt_tokens=len(stored.context_ids)",
        ),
        ("restored values are lost", 'values=tuple(details["values"])', "values=()"),
        (
            "choices of a reply share an id",
            "address('call', episode, number, choice)",
            "address('call', episode, number)",
        ),
        (
            "thinking that was not shown diverges",
            "text.thinking if request.shows_thinking else",
            "text.thinking if True else",
        ),
    ),
    *mutants(
        "gateway/store.py",
        (*STORE, *RECORDS),
        ("calls are read in any order", "ORDER BY number, choice", "ORDER BY id"),
        ("half of a failed write stays", 'self._connection.execute("ROLLBACK")', 'self._connection.execute("COMMIT")'),
    ),
    *mutants(
        "gateway/server.py",
        LIMITS,
        ("limits are not checked", "    check_request(chat)\n", ""),
        (
            "long bodies are read in the event loop",
            "self._workers.read(is_long_body(body), read",
            "self._workers.read(False, read",
        ),
    ),
    *mutants(
        "gateway/workers.py",
        LIMITS,
        ("long requests are rendered in the event loop", "self.read(request.is_long, f", "self.read(False, f"),
    ),
    *mutants(
        "gateway/server.py",
        SERVER,
        ("retries are sampled again", 'headers.get("x-stainless-retry-count", "")', '""'),
        ("wrong routes are not kept", "        self._refuse(request, status)\n", "        pass\n"),
    ),
    *mutants(
        "gateway/request_body.py",
        LIMITS,
        ("received bodies stay counted", "self._buffered -= sum(map(len, chunks))", "pass"),
        ("bodies of many values are read", "if count > MAX_VALUES:", "if count > 10 * MAX_VALUES:"),
        ("deep bodies are read", "for _ in range(MAX_DEPTH):", "for _ in range(10 * MAX_DEPTH):"),
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
        ("tools are not compared", "initial=digest_tools(tools)", "initial=digest_tools(())"),
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
        "gateway/reply_rules.py",
        ("gateway/test_reply_rules.py",),
        ("tools may be called although none", 'tools=() if value == "none"', 'tools=() if value == "any"'),
        ("a named function allows all", "tools, _named([row.get(kind, row)], param, tools))", "tools, tools)"),
        ("json_object is any text", "return ANY_OBJECT", "return None"),
    ),
    *mutants(
        "gateway/reply_grammar.py",
        ("gateway/test_reply_grammar.py",),
        ("tags in arguments end a call", "    if call is not None:\n", "    if False:\n"),
        (
            "schemas without a value are compiled",
            "                _check_schema(_json_rule(tool",
            "                str((tool",
        ),
        ("undeclared properties are allowed", 'closed.setdefault("additionalProperties", False)', "pass"),
    ),
    *mutants(
        "gateway/fields.py",
        (*HOSTILE, *MESSAGES, *RESPONSES),
        ("texts are glued together", '"\\n".join(texts)', '"".join(texts)'),
        ("base64 is not checked", "validate=True", "validate=False"),
        ("True is a number of tokens", "(value, bool) or not isinstance(value, int) or", "(value, str) or"),
        ("refused fields are accepted", "if body.get(name):", "if not body.get(name, 1):"),
    ),
)
