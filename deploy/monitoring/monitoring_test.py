"""Alert rules and dashboard: what is made is up to date, promtool takes the rules and plays their
scenarios, each alert has one and leads to a page."""
import os
import re
import tempfile
import unittest

import yaml

from deploy import deploy_tools
from deploy.monitoring import generate

FOLDER = "deploy/monitoring/"


def load(name):
    with open(FOLDER + name) as file:
        return yaml.safe_load(file)


def alerts():
    return [rule for group in load("alerts.yaml")["groups"] for rule in group["rules"]
            if "alert" in rule]


def expressions():
    """All PromQL of rules and dashboard."""
    found = [rule["expr"] for group in load("alerts.yaml")["groups"] for rule in group["rules"]]
    dashboard = generate.dashboard()
    for panel in dashboard["panels"]:
        found += [target["expr"] for target in panel.get("targets", [])]
    found += [variable["query"]["query"] for variable in dashboard["templating"]["list"]
              if variable["type"] == "query"]
    return found + [a["expr"] for a in dashboard["annotations"]["list"]]


class Rules(unittest.TestCase):
    def test_promtool_takes_them(self):
        self.assertIn("SUCCESS", deploy_tools.run("promtool", "check", "rules",
                                                  FOLDER + "alerts.yaml"))

    def test_promtool_plays_the_scenarios(self):
        deploy_tools.run("promtool", "test", "rules", FOLDER + "alerts_test.yaml")

    def test_each_alert_is_raised_in_a_scenario(self):
        raised = {case["alertname"] for test in load("alerts_test.yaml")["tests"]
                  for case in test["alert_rule_test"] if case.get("exp_alerts")}
        self.assertEqual(raised, {rule["alert"] for rule in alerts()})

    def test_each_alert_says_what_to_do(self):
        with open("docs/OPERATIONS.md") as file:
            headings = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
                        for heading in re.findall(r"^#+ (.*)$", file.read(), re.MULTILINE)}
        for rule in alerts():
            with self.subTest(alert=rule["alert"]):
                self.assertIn(rule["labels"]["severity"], ("critical", "warning", "info"))
                self.assertEqual(sorted(rule["annotations"]),
                                 ["description", "runbook", "summary"])
                page, _, heading = rule["annotations"]["runbook"].partition("#")
                self.assertEqual(page, "docs/OPERATIONS.md")
                self.assertIn(heading, headings)


class Made(unittest.TestCase):
    def test_generate_was_run(self):
        for name, content in generate.files().items():
            with open(FOLDER + name) as file:
                self.assertEqual(file.read(), content, "run deploy/monitoring/generate.py")

    def test_the_operators_rules_are_the_rules(self):
        self.assertEqual(load("prometheus_rule.yaml")["spec"], load("alerts.yaml"))


class Dashboard(unittest.TestCase):
    def setUp(self):
        self.panels = generate.dashboard()["panels"]

    def test_no_panel_lies_on_another(self):
        taken = set()
        for panel in self.panels:
            at = panel["gridPos"]
            for x in range(at["x"], at["x"] + at["w"]):
                for y in range(at["y"], at["y"] + at["h"]):
                    self.assertNotIn((x, y), taken, panel["title"])
                    self.assertLess(x, 24, panel["title"])
                    taken.add((x, y))

    def test_each_panel_says_what_it_shows(self):
        self.assertEqual(len({panel["id"] for panel in self.panels}), len(self.panels))
        for panel in self.panels:
            if panel["type"] != "row":
                self.assertTrue(panel["description"].endswith("."), panel["title"])
                self.assertTrue(panel["fieldConfig"]["defaults"]["unit"], panel["title"])

    def test_promtool_takes_its_expressions(self):
        """As rules, with Grafana's variables filled in."""
        rules = []
        for number, expression in enumerate(expressions()):
            if not expression.startswith("label_values("):
                filled = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
                rules.append({"record": "a:b:c%d" % number,
                              "expr": filled.replace("$cache", ".*")})
        self.assertGreater(len(rules), 40)
        text = yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]})
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rules.yaml")
            with open(path, "w") as file:
                file.write(text)
            deploy_tools.run("promtool", "check", "rules", path)


if __name__ == "__main__":
    unittest.main()
