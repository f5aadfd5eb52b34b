/** Again and again while a view is shown: paused in hidden tabs, slower while nothing is running. */

export const RUNNING_MS = 2000;
export const RESTING_MS = 10000;

/** Calls `action` until `signal` ends; it answers whether something is running. A hidden tab asks for nothing. */
export function poll(action, signal, running) {
  let timer = 0;
  let busy = false;
  const wait = (isRunning) => {
    clearTimeout(timer);
    if (!signal.aborted && !document.hidden) timer = setTimeout(tick, isRunning ? RUNNING_MS : RESTING_MS);
    showLive(isRunning);
  };
  const tick = async () => {
    if (busy) return;
    busy = true;
    try {
      running = await action();
      setTrouble(null);
    } catch (error) {
      if (error.name !== "AbortError") setTrouble(error);
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

let trouble = null;

function setTrouble(error) {
  trouble = error;
}

function showLive(running) {
  const place = document.getElementById("live");
  place.hidden = !running && !trouble;
  place.classList.toggle("trouble", Boolean(trouble));
  place.textContent = trouble ? "no answer" : "live";
  place.title = trouble ? trouble.message : "a run is going: new steps appear by themselves";
}
