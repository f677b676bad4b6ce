/** Let the messages in that have come meanwhile. */

/** Settle in a new task, after the tasks of the messages that are there; timers would wait for 4 ms. */
export function nextTask(): Promise<void> {
  // A channel for each: one that stays open would keep a process alive where workers are its threads (Node).
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
