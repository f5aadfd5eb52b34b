"""TRL's side of step_cpu.py and step_gpu.py. It takes the job as JSON, trains one step for every line on stdin, and
answers each with a line of JSON: the seconds and the sampled tokens.

`rollout_func`           our function plays all turns with transformers' `generate`, in batches of `generation_batch`
`environment_factory`    TRL plays: each answer is a call of the environment's only tool, until the turns are used up

The second interface needs two changes. The chat template does not list the tool, so that the prompts equal those of the
other sides; the system message says how to answer. A response template parses every answer as a call of that tool,
since any other answer would end the episode. TRL runs no tool after the last answer, so the reward function does.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from step_job import Game, Job
from transformers import AutoTokenizer, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

MARK = "MARK"
LONGEST = 4096
"""Maximum of tokens of an episode after its prompt; never reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that change only the speed."""

    micro_batch: int
    generation_batch: int


class RecordingTrainer(GRPOTrainer):
    """Keeps the sampled tokens of the last step and the seconds of its rollout."""

    last: dict[str, Any]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        began = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        seconds = time.perf_counter() - began
        sampled = (output["completion_mask"] * output["tool_mask"]).sum(dim=1)
        rows = zip(output["prompt_ids"], output["prompt_mask"].bool(), strict=True)
        self.last = {
            "rollout_s": seconds,
            "sampled": sampled.tolist(),
            "tokens": int(output["prompt_mask"].sum() + output["completion_mask"].sum()),
            "prompts": [ids[mask].tolist() for ids, mask in rows],
        }
        return output


class Clock(TrainerCallback):
    """Runs one step for every `go` and reports its seconds."""

    def __init__(self, updates: int, go: Callable[[], bool], report: Callable[[dict[str, Any]], None]) -> None:
        self.updates, self.go, self.report = updates, go, report
        self.trainer: RecordingTrainer

    def _start(self) -> None:
        self.began, self.began_cpu = time.perf_counter(), time.process_time()

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.go()
        self._start()

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step % self.updates:
            return
        _synchronize()
        times = {"seconds": time.perf_counter() - self.began, "cpu_s": time.process_time() - self.began_cpu}
        self.report(times | self.trainer.last)
        if not self.go():
            control.should_training_stop = True
        self._start()


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def games_of(job: Job, number: int) -> list[Game]:
    tasks = [task for task in job.tasks(number) for _ in range(job.group_size)]
    return [Game(task, index % job.group_size, job.format_penalty) for index, task in enumerate(tasks)]


# ------------------------------------------------------------------------------------------------------ rollout_func


Sampled = tuple[list[list[int]], list[list[float]]]
"""Answers, and their log-probabilities if vLLM sampled them."""


class Rollout:
    """A `rollout_func` that plays all episodes in lock-step. Sampled tokens are never re-encoded."""

    def __init__(self, job: Job, tokenizer: Any, batch: int) -> None:
        self.job, self.tokenizer, self.batch = job, tokenizer, batch
        self.around = self._scaffolding()

    def _scaffolding(self) -> list[str]:
        """Return the template's text before and after an observation, from the end of the previous answer on."""
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        before = self.tokenizer.apply_chat_template(messages, tokenize=False)
        whole = self.tokenizer.apply_chat_template(
            [*messages, {"role": "user", "content": MARK}], tokenize=False, add_generation_prompt=True
        )
        return whole[before.rindex(self.tokenizer.eos_token) :].split(MARK)

    def __call__(self, prompts: Sequence[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        games = games_of(self.job, trainer.state.global_step // self.job.updates)
        rendered = self.tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True, return_dict=True)
        prompt_ids = rendered["input_ids"]
        contexts = [list(ids) for ids in prompt_ids]
        masks: list[list[int]] = [[] for _ in games]
        logprobs: list[list[float]] = [[] for _ in games]
        for turn in range(self.job.turns):
            answers, answer_logprobs = (
                self._vllm(contexts, trainer) if self.job.vllm else self._generate(contexts, trainer)
            )
            texts = self.tokenizer.batch_decode(answers)
            replies = [game.play(text) for game, text in zip(games, texts, strict=True)]
            observations = self._encode(replies) if turn + 1 < self.job.turns else [[] for _ in games]
            for index, (answer, more) in enumerate(zip(answers, observations, strict=True)):
                contexts[index] += [*answer, *more]
                masks[index] += [1] * len(answer) + [0] * len(more)
                logprobs[index] += [*answer_logprobs[index], *(0.0 for _ in more)]
        completions = [context[len(ids) :] for context, ids in zip(contexts, prompt_ids, strict=True)]
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completions,
            "logprobs": logprobs if self.job.vllm else None,  # TRL reads them only if vLLM sampled
            "env_mask": masks,
            "earned": [game.reward for game in games],
        }

    def _encode(self, replies: Sequence[str]) -> list[list[int]]:
        before, after = self.around
        ids: list[list[int]] = self.tokenizer([f"{before}{reply}{after}" for reply in replies])["input_ids"]
        return ids

    @torch.no_grad()
    def _generate(self, contexts: Sequence[list[int]], trainer: GRPOTrainer) -> Sampled:
        model, answers = trainer.accelerator.unwrap_model(trainer.model), []
        for start in range(0, len(contexts), self.batch):
            part = {"input_ids": list(contexts[start : start + self.batch])}
            padded = self.tokenizer.pad(part, padding_side="left", return_tensors="pt").to(model.device)
            output = model.generate(**padded, generation_config=trainer.generation_config)
            answers += output[:, padded["input_ids"].shape[1] :].tolist()
        return answers, [[] for _ in answers]

    def _vllm(self, contexts: Sequence[list[int]], trainer: GRPOTrainer) -> Sampled:
        _, answers, logprobs, _ = trainer.vllm_generation.generate(
            prompts=list(contexts), images=None, num_generations=1
        )
        return answers, [[each[0] for each in row] for row in logprobs]


def rollout_reward(completions: Any, earned: list[float], **rest: Any) -> list[float]:
    return earned


# ----------------------------------------------------------------------------------------------- environment_factory


class Lake:
    """An environment in TRL's interface: `reset` and one tool."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def reset(self, number: int, index: int, **rest: Any) -> str:
        self._game = Game(self._job.tasks(number)[index], 0, self._job.format_penalty)
        return self._game.opening[-1].content

    def move(self, answer: str) -> str:
        """Moves over the ice.

        Args:
            answer: The move.

        Returns:
            The lake after it.
        """
        return self._game.play(answer)

    def _finish(self, answer: str) -> float:
        self._game.play(answer)
        return self._game.reward


def environment_reward(completions: Any, environments: list[Lake], **rest: Any) -> list[float]:
    """Play the last answer, which TRL's loop does not, and return the rewards."""
    last = [completion[-1]["tool_calls"][0]["function"]["arguments"]["answer"] for completion in completions]
    return [environment._finish(answer) for environment, answer in zip(environments, last, strict=True)]


ANY_ANSWER_IS_A_CALL = {
    "open_pattern": "(?=.)",
    "repeats": True,
    "content": "text",
    "transform": {"type": "function", "function": {"name": "move", "arguments": {"answer": "{content}"}}},
}


def set_tool_templates(tokenizer: Any) -> Any:
    """Remove the list of tools from the prompt, and parse every answer as a call."""
    header = tokenizer.apply_chat_template([{"role": "user", "content": MARK}], tokenize=False)
    prompted = tokenizer.apply_chat_template(
        [{"role": "user", "content": MARK}], tokenize=False, add_generation_prompt=True
    )
    template: str = tokenizer.chat_template
    if "tool_calls" not in template:  # TRL requires a template that can render calls, though none is rendered here
        content = "message['content']"
        template = template.replace(
            content, f"({content} + (message.tool_calls | tojson if message.tool_calls else ''))"
        )
    tokenizer.chat_template = "{%- set tools = none -%}" + template
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": prompted.removeprefix(header),
        "fields": {"tool_calls": ANY_ANSWER_IS_A_CALL},
    }
    return tokenizer


# ----------------------------------------------------------------------------------------------------------- both ways


def dataset_of(job: Job, steps: int, with_observation: bool) -> Dataset:
    """Return one row per task, in the order in which they are played."""
    rows = []
    for number in range(steps):
        for index, task in enumerate(job.tasks(number)):
            system, user = Game(task, 0, job.format_penalty).opening
            observation = user.content if with_observation else ""
            prompt = [{"role": "system", "content": system.content}, {"role": "user", "content": observation}]
            rows.append({"prompt": prompt, "number": number, "index": index})
    return Dataset.from_list(rows)


def config_of(job: Job, settings: Settings, steps: int, folder: str) -> GRPOConfig:
    on_gpu, unit = job.device != "cpu", "tokens" if job.vllm else "new_tokens"
    return GRPOConfig(
        output_dir=folder,
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        use_cpu=not on_gpu,
        bf16=on_gpu,
        gradient_checkpointing=False,
        max_steps=steps * job.updates,
        num_generations=job.group_size,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=job.mini_batch // settings.micro_batch,
        steps_per_generation=job.episodes // settings.micro_batch,
        shuffle_dataset=False,
        max_completion_length=LONGEST,
        max_tool_calling_iterations=job.turns - 1,
        temperature=1.0,
        # Turns have the same length on all sides. TRL cuts an answer at its end token, which must not be sampled.
        generation_kwargs={f"{limit}_{unit}": job.new_tokens for limit in ("max", "min")},
        use_vllm=job.vllm,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.15,  # enough for all episodes; turnwise uses the same GPU
        loss_type="dapo",
        scale_rewards="group",
        beta=0.0,
        epsilon=job.clip_low,
        epsilon_high=job.clip_high,
        entropy_coef=job.entropy_coef,
        optim="adamw_torch_fused",
        learning_rate=job.learning_rate,
        adam_beta1=job.betas[0],
        adam_beta2=job.betas[1],
        weight_decay=0.0,
        max_grad_norm=job.max_grad_norm,
        lr_scheduler_type="constant",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def train(way: str, job: Job, settings: Settings, steps: int, clock: Clock) -> None:
    tokenizer = AutoTokenizer.from_pretrained(job.model, padding_side="left")
    interface: dict[str, Any]
    if way == "rollout_func":
        rollout = Rollout(job, tokenizer, settings.generation_batch)
        interface = {"rollout_func": rollout, "reward_funcs": rollout_reward}
    else:
        tokenizer = set_tool_templates(tokenizer)
        interface = {"environment_factory": partial(Lake, job), "reward_funcs": environment_reward}
    with tempfile.TemporaryDirectory() as folder:
        trainer = RecordingTrainer(
            model=job.model,
            args=config_of(job, settings, steps, folder),
            train_dataset=dataset_of(job, steps, with_observation=way == "rollout_func"),
            processing_class=tokenizer,
            callbacks=[clock],
            **interface,
        )
        clock.trainer = trainer
        trainer.train()


def seconds_of(way: str, job: Job, settings: Settings) -> float:
    """Return the seconds of one step; CPU seconds on a CPU, which other load affects less."""
    steps: list[dict[str, Any]] = []
    train(way, job, settings, 1, Clock(job.updates, lambda: True, steps.append))
    return steps[0]["cpu_s" if job.device == "cpu" else "seconds"]


def fastest(way: str, job: Job, micro_batches: Sequence[int], generation_batches: Sequence[int]) -> Settings:
    """Choose the batch size of `generate` first, if there is one, then that of the loss."""
    fit = [size for size in micro_batches if job.mini_batch % size == 0]
    batches = generation_batches if way == "rollout_func" and not job.vllm else [job.episodes]
    first = _best(way, job, [Settings(micro_batch=fit[0], generation_batch=size) for size in batches])
    return _best(way, job, [replace(first, micro_batch=size) for size in fit])


def _best(way: str, job: Job, choices: Sequence[Settings]) -> Settings:
    return choices[0] if len(choices) == 1 else min(choices, key=lambda each: seconds_of(way, job, each))


def main() -> None:
    request = json.loads(sys.argv[1])
    torch.set_num_threads(request["threads"])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # output of the libraries is not an answer
    disable_progress_bar()
    job, way = Job(**request["job"]), request["way"]
    settings = fastest(way, job, request["micro_batches"], request["generation_batches"])
    answers.write(json.dumps({"micro_batch": settings.micro_batch, "batch": settings.generation_batch}) + "\n")

    def report(step: dict[str, Any]) -> None:
        answers.write(json.dumps(step) + "\n")

    clock = Clock(job.updates, lambda: bool(sys.stdin.readline()), report)
    train(way, job, settings, request["steps"], clock)


if __name__ == "__main__":
    main()
