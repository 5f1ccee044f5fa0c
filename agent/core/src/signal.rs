//! Stop signals: names of the API and numbers of the CRI. Pure.
// k8s: pkg/kubelet/kuberuntime/helpers.go signalNameToRuntimeEnum, runtimeSignalToString

use pintle_cri_v1::Signal;

/// Signs of the API that are words in the CRI.
const WORDS: [(&str, &str); 2] = [("+", "PLUS"), ("-", "MINUS")];

/// The signal of a name: `SIGTERM`, `SIGRTMIN+1`.
pub fn of_name(name: &str) -> Option<Signal> {
    let [plus, minus] = WORDS;
    Signal::from_str_name(&name.replace(plus.0, plus.1).replace(minus.0, minus.1))
}

/// The name of a signal; `None` for the runtime's own choice, which older runtimes always report.
pub fn name(signal: Signal) -> Option<String> {
    let [plus, minus] = WORDS;
    let name = signal.as_str_name();
    let named = name.replace(plus.1, plus.0).replace(minus.1, minus.0);
    (signal != Signal::RuntimeDefault).then_some(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_api() {
        for text in ["SIGTERM", "SIGRTMIN", "SIGRTMIN+15", "SIGRTMAX-14", "SIGRTMAX"] {
            let signal = of_name(text).expect(text);
            assert_eq!(name(signal).as_deref(), Some(text));
        }
        assert_eq!(of_name("SIGNONE"), None);
        assert_eq!(name(Signal::RuntimeDefault), None);
    }
}
