/** Polling while a view is shown: paused in hidden tabs, slower while no run is in progress. */

export const RUNNING_MS = 2000;
export const IDLE_MS = 10000;

let lastError = null;

/** Call `action` repeatedly until `signal` aborts. `action` returns whether a run is in progress. */
export function poll(action, signal, running) {
  let timer = 0;
  let busy = false;
  const wait = (isRunning) => {
    clearTimeout(timer);
    if (!signal.aborted && !document.hidden) timer = setTimeout(tick, isRunning ? RUNNING_MS : IDLE_MS);
    showLive(isRunning);
  };
  const tick = async () => {
    if (busy) return;
    busy = true;
    try {
      running = await action();
      lastError = null;
    } catch (error) {
      if (error.name !== "AbortError") lastError = error;
    } finally {
      busy = false;
    }
    wait(running);
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : tick()), { signal });
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    showLive(false);
  });
  wait(running);
}

function showLive(running) {
  const badge = document.getElementById("live");
  badge.hidden = !running && !lastError;
  badge.classList.toggle("disconnected", Boolean(lastError));
  badge.textContent = lastError ? "disconnected" : "live";
  badge.title = lastError ? lastError.message : "A run is in progress: new steps appear automatically";
}
