"""Mutants of turnwise.render: which ids are written, and what sampled ids say."""

from mutant_for_tests import mutants

PARSE = ("render/test_parse.py",)
MARKS = ("render/test_special_token_boundaries.py",)
RENDERER = (*MARKS, "render/test_renderer.py", "render/test_conversations.py")
LONG = ("render/test_long_conversations.py",)
HOSTILE = (*MARKS, "render/test_untrusted_text.py", "render/test_renderer.py")

IN_RENDER = (
    *mutants(
        "render/parse.py",
        PARSE,
        ("a span begins with its tag", "bisect_right(ends, block.begin)", "bisect_left(ends, block.begin)"),
        ("a span ends with its tag", "bisect_left(begins, block.end)", "bisect_right(begins, block.end)"),
        ("an open think block in the prompt is not seen", 'b"think" if opens_think else b""', 'b""'),
        ("sections are at the start of the reply", "begin=block.begin + section.begin", "begin=section.begin"),
        ("a section ends with the thinking", "end=block.begin + section.end)", "end=block.end)"),
        (
            "sections outside the thinking",
            'if block.name == "think" and block.closed:',
            'if block.name != "call" and block.closed:',
        ),
        (
            "sections of unclosed thinking",
            'if block.name == "think" and block.closed:',
            'if block.name == "think":',
        ),
        ("unclosed sections", "                if section.closed:", "                if True:"),
        (
            "sections of thinking that the prompt opened",
            'b"think" if _begins_inside_thinking(data) else b""',
            'b""',
        ),
        ("unclosed calls are made", 'if block.name == "call" and block.closed', 'if block.name == "call"'),
        ("empty blocks have spans", "if block.begin < block.end", "if block.begin <= block.end"),
        (
            "an unclosed block swallows the next",
            "last_close.get(open_tag, -1) < begin",
            "last_close.get(open_tag, -1) < 0",
        ),
    ),
    *mutants(
        "render/parse.py",
        PARSE,
        (
            "arguments are written anew",
            "arguments if isinstance(arguments, str) else raw",
            "arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True)",
        ),
        ("text after a call is ignored", "if text[at + 1 :].strip():", "if False:"),
        ("a call without a name", "not isinstance(name, str) or not name or", "not isinstance(name, str) or"),
    ),
    *mutants(
        "render/template.py",
        LONG,
        ("each message is probed alone", "if group not in taken)", "if group not in group_of.values())"),
        ("neighbours are probed together", "if group not in taken)", "if group >= 0)"),
        ("a second occurrence is not checked", "* (right == word)}", "* (right == word and left != word)}"),
    ),
    *mutants(
        "render/codec.py",
        LONG,
        (
            "encoding holds the GIL",
            "encode = (self._spaced if spaced else self._bare).encode_batch_fast",
            "one = (self._spaced if spaced else self._bare).encode\n"
            "        encode = lambda texts, **options: [one(texts[0], **options)]",
        ),
    ),
    *mutants(
        "render/renderer.py",
        (*RENDERER, "render/test_prefix_spans.py", "rollout/test_tools_in_words.py"),
        ("the end of the turn is part of the message", "ids[:-1] if ended else ids", "ids"),
        ("a stop string's turn is not ended", "stop is Stop.EOS).ids(", "stop is not Stop.LENGTH).ids("),
        ("written answers have no end", "*([] if self._turn_end is None else [self._turn_end])", "*[]"),
        (
            "the prefix is given at the start only",
            "stop is Stop.EOS).ids(messages), *self._prefix_ids]",
            "stop is Stop.EOS).ids(messages)]",
        ),
        ("spans count the prefix", "end=span.end - 1)", "end=span.end)"),
        (
            "tools before the rules",
            'parts=(*messages[0].parts, *text_parts(f"\\n{more}"))',
            'parts=(*text_parts(f"{more}\\n"), *messages[0].parts)',
        ),
        (
            "further stop ids are not read",
            "self._end.id if self._end else None, *stop_ids}",
            "self._end.id if self._end else None}",
        ),
        (
            "tools are described twice",
            "if tools and not self.renders_tools:",
            "if tools:",
        ),
    ),
    *mutants(
        "render/compiled_template.py",
        (*HOSTILE, "render/test_conversations.py"),
        ("an environment may write markup", "not part.trusted(messages)", "part.trusted(messages)"),
        ("whitespace before a token is kept", "if self.lstrip:\n            text", "if self.rstrip:\n            text"),
        ("a space behind sampled text", 'spaced and before != "text"', "spaced"),
        (
            "a mark in foreign text only where it is all foreign",
            "untrusted[following][0] < match.end():",
            "untrusted[following][0] <= match.start() and match.end() <= ends[following]:",
        ),
    ),
    *mutants(
        "render/codec.py",
        HOSTILE,
        (
            "special tokens in a text are special",
            "backend.encode_special_tokens = True",
            "backend.encode_special_tokens = False",
        ),
        (
            "a space behind every cut",
            "self.encode(text[begin:end], spaced and begin == 0)",
            "self.encode(text[begin:end], spaced)",
        ),
    ),
    *mutants(
        "render/scaffold.py",
        RENDERER,
        ("the sampled end of a turn comes twice", "(parts[0].partition(end)[2], *parts[1:])", "parts"),
        ("a closed think block counts as open", 'footer.rfind(THINK) > footer.rfind("</think>")', "THINK in footer"),
    ),
    *mutants(
        "render/slots.py",
        HOSTILE,
        (
            "users are trusted",
            'TRUSTED_ROLES = ("system", "assistant")',
            'TRUSTED_ROLES = ("system", "assistant", "user")',
        ),
        (
            "one trusted author is enough",
            "all(messages[member].role in TRUSTED_ROLES",
            "any(messages[member].role in TRUSTED_ROLES",
        ),
        ("joined messages touch", 'BLANK_LINE = "\\n\\n"', 'BLANK_LINE = "\\n"'),
    ),
    *mutants(
        "render/codec.py",
        MARKS,
        ("short tokens match first", "key=len, reverse=True", "key=len"),
    ),
)
