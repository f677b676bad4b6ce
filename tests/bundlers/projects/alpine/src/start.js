import Alpine from "alpinejs";
import { env, Tensor, TrainingSession } from "trainweb";
import { checkStates } from "./state.js";
import { report } from "./train.js";

Alpine.store("values", {});

Alpine.data("trainer", () => ({
  values: {},
  init() {
    const states = {
      "x-data": (name, value) => {
        this.values[name] = value;
        return this.values[name];
      },
      "a store": (name, value) => {
        const store = Alpine.store("values");
        store[name] = value;
        return store[name];
      },
      reactive: (_, value) => Alpine.reactive({ value }).value,
    };
    report(env, Tensor, TrainingSession, () => checkStates(states));
  },
}));

document.body.insertAdjacentHTML(
  "beforeend",
  '<p x-data="trainer" x-text="values.session?.trainingInputNames ?? Object.keys($store.values)"></p>',
);
Alpine.start();
