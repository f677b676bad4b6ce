import { Tensor } from "trainweb";
import Trainer from "./trainer";

/** A server component: it makes a tensor on the server. */
export default function Page() {
  const tensor = new Tensor("float32", [1, 2, 3], [3]);
  return (
    <main>
      <p id="server">{tensor.size} values</p>
      <Trainer />
    </main>
  );
}
