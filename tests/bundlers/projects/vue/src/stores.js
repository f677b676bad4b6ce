import { defineStore } from "pinia";
import { ref } from "vue";

export const useOptions = defineStore("options", { state: () => ({ values: {} }) });

export const useSetup = defineStore("setup", () => {
  const value = ref(null);
  return { value };
});
