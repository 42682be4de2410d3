"""The UI message stream of the AI SDK: `useChat` runs, resumes and stops an agent."""
