"""From a wanted length to hyper-parameters: the rule, and the choice by an objective."""
