import { useEffect, useRef, useState } from "react";
import { env, Tensor, TrainingSession } from "trainweb";
import { proxy, ref, snapshot, useSnapshot } from "valtio";
import { checkStates } from "./state.js";
import { report } from "./train.js";

const values = proxy({});
/** Objects with private fields; options, rows, tensors and results can be proxies. */
const PRIVATE = ["data", "session", "run", "model"];

export function App() {
  const { session } = useSnapshot(values);
  const [state, setState] = useState({});
  const current = useRef({});

  useEffect(() => {
    const keep = (name, value) => {
      values[name] = PRIVATE.includes(name) ? ref(value) : value;
      return values[name];
    };
    const states = {
      "ref of Valtio": keep,
      "a snapshot": (name, value) => keep(name, value) && snapshot(values)[name],
      useState: (name, value) => {
        setState((before) => ({ ...before, [name]: value }));
        return value;
      },
      useRef: (name, value) => {
        current.current[name] = value;
        return current.current[name];
      },
    };
    report(env, Tensor, TrainingSession, () => checkStates(states));
  }, []);

  return <p>{Object.keys(state).length} values, inputs: {session?.trainingInputNames}</p>;
}
