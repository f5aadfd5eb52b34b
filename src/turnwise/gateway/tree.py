"""One episode's calls as a tree of contexts with exact ids.

A request that continues a recorded conversation extends its ids; what diverges starts a branch:

    system user A1 tool A2            branch 0: A1 and A2 are trained
    system user A1 tool A3            branch 1: A1 is context there, A3 is trained
    system user' B1                   branch 2: a sub-agent

Every sampled token is the action of exactly one call, and a branch is one segment of the trajectory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from turnwise.core.messages import Message
from turnwise.core.protocols import Completion
from turnwise.core.random_streams import address
from turnwise.core.task import EpisodeKey
from turnwise.gateway.chat import ChatReply
from turnwise.gateway.conversation import ConversationTrace, Digest, digest_message, digest_reply
from turnwise.gateway.sessions import BranchSession
from turnwise.gateway.store import StoredCall
from turnwise.render.parse import ParsedAction


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedCall:
    """One sampled choice. It is the last of its branch until another extends it."""

    stored: StoredCall
    branch: "Branch"
    completion: Completion
    parsed: ParsedAction
    reply: ChatReply

    @property
    def is_free(self) -> bool:
        """Whether the branch ends here and no running call extends it."""
        return not self.branch.busy and self.branch.calls[-1] is self

    def context(self) -> list[int]:
        """Return all ids of the branch up to the sampled ones of this call."""
        before = chain.from_iterable((*call.stored.context_ids, *call.stored.action_ids) for call in self._until())
        return list(before)

    def _until(self) -> Iterator["RecordedCall"]:
        for call in self.branch.calls:
            yield call
            if call is self:
                return


@dataclass(slots=True, eq=False, kw_only=True)
class Branch:
    """A context that grows by calls, with its own session."""

    number: int
    conversation: Digest
    """The conversation that started it, before its first reply."""
    session: BranchSession
    """Its key has the random stream of the branch."""
    calls: list[RecordedCall] = field(default_factory=list)
    busy: bool = True
    """A call is running that will extend it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position of a request in the tree."""

    messages: tuple[Message, ...]
    conversation: Digest
    """Digest of the tools and messages."""
    parent: RecordedCall | None
    """Call whose conversation the request continues; None: it starts a new one."""
    shared: int
    """Number of first messages that the parent's ids cover."""


class CallTree:
    """Finds what a request continues, and keeps the branches."""

    def __init__(self, key: EpisodeKey) -> None:
        self._key = key
        self.branches: list[Branch] = []
        self._conversations: dict[Digest, list[RecordedCall]] = {}
        """Conversation that ends with a sampled reply -> its calls, which several equal replies may have."""
        self._replies: dict[Digest, RecordedCall] = {}
        self._answers: dict[Digest, RecordedCall] = {}
        """Replies without their thinking."""
        self._numbers = 0

    def locate(self, trace: ConversationTrace) -> Position:
        """Find the call whose conversation, its reply included, is the longest beginning of this one."""
        parent, shared = None, 0
        for index in reversed(range(len(trace.messages))):
            if trace.messages[index].role == "assistant" and trace.digests[index] in self._conversations:
                parent, shared = _most_likely(self._conversations[trace.digests[index]], trace.given[index]), index + 1
                break
        return Position(messages=trace.messages, conversation=trace.digests[-1], parent=parent, shared=shared)

    def find_reply(self, message: Message) -> RecordedCall | None:
        """Return the latest call whose reply this is, whatever came before it."""
        return self._replies.get(digest_message(message))

    def find_answer(self, message: Message) -> RecordedCall | None:
        """Return the latest call whose reply without its thinking this is."""
        return self._answers.get(digest_message(message))

    def claim(self, position: Position, count: int) -> list[Branch]:
        """Return branches for `count` replies: the parent's own if nothing extends it yet, then new ones."""
        branches = []
        parent = position.parent
        if parent is not None and parent.is_free:
            parent.branch.busy = True
            branches.append(parent.branch)
        return [*branches, *(self._start(position.conversation) for _ in range(count - len(branches)))]

    def _start(self, conversation: Digest) -> Branch:
        """Start a branch. Except for the first, its random stream depends on the conversation, not on arrival."""
        equal = sum(branch.conversation == conversation for branch in self.branches)
        stream = address("branch", conversation.hex(), equal) if self.branches else 0
        key = replace(self._key, branch=stream)
        branch = Branch(number=self._numbers, conversation=conversation, session=BranchSession(key))
        self._numbers += 1
        self.branches.append(branch)
        return branch

    def restore(self, stored: StoredCall) -> Branch:
        """Return the branch of a stored call, which the caller then adds."""
        for branch in self.branches:
            if branch.number == stored.branch:
                return branch
        session = BranchSession(replace(self._key, branch=stored.details["stream"]))
        conversation = bytes.fromhex(stored.details["branch_conversation"])
        branch = Branch(number=stored.branch, conversation=conversation, session=session, busy=False)
        self.branches.append(branch)
        self._numbers = max(self._numbers, branch.number + 1)
        return branch

    def release(self, branches: Sequence[Branch]) -> None:
        """End the claim. Branches without a call are removed."""
        for branch in branches:
            branch.busy = False
        self.branches = [branch for branch in self.branches if branch.calls or branch.busy]

    def forget(self, keep: int) -> list[Branch]:
        """Remove and return branches, those that were extended least recently, until `keep` are left."""
        idle = sorted(
            (branch for branch in self.branches if not branch.busy), key=lambda branch: branch.calls[-1].stored.number
        )
        gone = idle[: max(0, len(self.branches) - keep)]
        if gone:
            self.branches = [branch for branch in self.branches if branch not in gone]
            calls = [call for branch in self.branches for call in branch.calls]
            self._conversations, self._replies, self._answers = {}, {}, {}
            for call in sorted(calls, key=lambda call: (call.stored.number, call.stored.choice)):
                self._index(call)
        return gone

    def _index(self, call: RecordedCall) -> None:
        self._conversations.setdefault(call.stored.conversation, []).append(call)
        self._replies[call.stored.reply] = call
        self._answers[digest_reply(call.reply.message, thinking="")] = call

    def add(self, call: RecordedCall) -> None:
        """Add a call at the end of its branch."""
        call.branch.calls.append(call)
        call.branch.session.sampled = sum(len(branch_call.completion.ids) for branch_call in call.branch.calls)
        self._index(call)

    def calls(self) -> Iterator[RecordedCall]:
        """Yield the calls, one branch after another. The branch of the latest request comes last."""
        used = [branch for branch in self.branches if branch.calls]
        for branch in sorted(used, key=lambda branch: branch.calls[-1].stored.number):
            yield from branch.calls


def _most_likely(equal: Sequence[RecordedCall], message: Message) -> RecordedCall:
    """Return which of several equal replies the message is: the one with its call ids, or one that nothing extends."""

    def rank(call: RecordedCall) -> tuple[bool, bool]:
        ids = [tool_call.call_id for tool_call in message.tool_calls]
        return [tool_call.call_id for tool_call in call.reply.message.tool_calls] == ids, call.is_free

    return max(equal, key=rank)
