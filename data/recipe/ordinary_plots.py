"""Story plots: each plot is a list of slots, each slot a list of sentence templates.

`p` is the hero, `q` a helper of the other gender, `rel` what q is to p, `when` a time such as
"on Monday morning", `thing` a small thing, `spot`, `spot2`, `spot3` places in a house.
"""

from __future__ import annotations

OPENINGS = (
    "It was a {weather} day.",
    "",
    "",
    "",
    "The house was quiet.",
    "{p.name} lived in a small house near the {place}.",
    "This is the story of {p.name}.",
    "{p.name} was {age} years old.",
    "There was nobody in the street.",
    "{p.name} and {q.name} lived on {street}.",
)
ENDINGS = (
    "",
    "",
    "In the end, everyone was {good}.",
    "{p.name} never forgot that day.",
    "That night {p.subj} slept well.",
    "{p.name} was {good}, and so was everyone else.",
    "{p.Subj} {joy}.",
    '"What a day!" said {p.name}.',
    "It was a day to remember.",
    "{p.Subj} wrote about it in {p.poss} notebook.",
    "{p.name} talked about it for weeks.",
)

LOST = (
    (
        "{when}, {p.name} could not find {p.poss} {thing}.",
        "{p.name} had lost {p.poss} {thing}, and {p.subj} was worried.",
        "{when}, {p.name} noticed that {p.poss} {thing} was gone.",
        '"Where is my {thing}?" asked {p.name}.',
    ),
    (
        "{p.Subj} looked {spot}, but it was not there.",
        "First {p.subj} searched {spot} and found nothing.",
        "It was not {spot}, and it was not {spot2} either.",
    ),
    (
        "Then {p.subj} looked {spot3}, but {p.subj} only found {other.a}.",
        "{p.Subj} also checked the {room} (twice!), but it was empty.",
        "{p.Subj} opened every box in the {room}.",
        "",
    ),
    (
        '{p.Poss} {rel}, {q.name}, asked, "Where did you see it last?"',
        '"What are you looking for?" asked {q.name}. "My {thing}," said {p.name}.',
        "{q.name} wanted to help, so {q.subj} searched the {room2} while {p.name} searched the hall.",
    ),
    (
        "{p.name} thought for a moment. Then {p.subj} remembered the {place}.",
        "Suddenly {p.name} remembered that {p.subj} had been at the {place} the day before.",
        '"I had it at the {place}," said {p.name}.',
    ),
    (
        "They went there together, and {q.name} saw the {thing} on a bench.",
        "They ran back, and there it was: the {thing} lay near the door.",
        "A friendly {job} had found it and gave it back to {p.obj}.",
        "But the {thing} was not there. It was in {p.own} own pocket!",
    ),
    (
        "{p.name} thanked {q.obj} and {joy}.",
        "From that day on, {p.subj} always kept it {spot}.",
        '"I will never lose it again," {p.subj} said.',
        "{p.Subj} was {good}, because it had been a present from {p.poss} {kin}.",
    ),
)

BROKEN = (
    (
        "{when}, {p.name} dropped {p.poss} {brittle}, and it broke.",
        "{p.own} {brittle} fell off the {furniture} and broke into {number} pieces.",
        "{p.name} was in a hurry, so {p.subj} knocked over {brittle.a}. It broke.",
    ),
    (
        "{p.Subj} was {bad}, because the {brittle} belonged to {q.name}.",
        "At first {p.subj} wanted to hide the pieces.",
        '"Oh no!" {p.subj} cried.',
        "{p.Subj} felt {bad} and did not know what to say.",
    ),
    (
        "{p.Subj} swept up the pieces and put them into a box.",
        "{p.Subj} picked up the pieces carefully, so that nobody would get hurt.",
        "Nobody had seen it, but {p.name} decided to tell the truth.",
    ),
    (
        "Then {p.subj} went to {q.name} and told {q.obj} what had happened.",
        'When {q.name} came home, {p.subj} said, "I am sorry. I broke the {brittle}."',
        "{p.Subj} wrote a letter to {q.name} and said sorry.",
    ),
    (
        '{q.name} was not angry. "It was only {brittle.a}," {q.subj} said.',
        "{q.name} was {bad} at first, but then {q.subj} smiled.",
        '"Thank you for telling me," said {q.name}.',
    ),
    (
        "They repaired it together with glue, and it looked almost new.",
        "The next day they bought a new one at the {place}.",
        "They could not repair it, so they made a new one out of clay.",
        "",
    ),
)

RAIN = (
    (
        "{p.name} and {q.name} wanted to go to the {trip} {when}.",
        "{when}, {p.name} and {q.name} planned a trip to the {trip}.",
        "{p.name} had been waiting for this day: a trip to the {trip} with {q.name}.",
    ),
    (
        "They packed {food.pl}, a bottle of juice and {thing.a}.",
        "{q.name} carried the basket, and {p.name} carried the {thing}.",
        "They took the bus, because it was too far to walk.",
        "{p.Subj} put on {p.poss} {colour} {clothing}.",
    ),
    (
        "But when they arrived, dark clouds covered the sky, and it began to rain.",
        "Halfway there, it started to rain, and the wind grew strong.",
        "As soon as they sat down, rain fell on their heads.",
    ),
    (
        "Neither of them had an umbrella, so they got wet.",
        "Because they had only one umbrella, they had to share it.",
        "They ran to a tree and waited under it for {number} minutes.",
        '"We should go home," said {q.name}, but {p.name} did not want to.',
    ),
    (
        "So they went into a small shop and drank hot tea.",
        "In the end they ate their {food.pl} in the {room} at home.",
        "Instead of going home, they jumped over every puddle.",
        "Then the rain stopped, and the sun came out again.",
    ),
    (
        '"Next time we will look at the weather report," said {p.name}.',
        "They came home late, wet and {good}.",
        "It was not the trip they had planned, but it was a good day.",
        "",
    ),
)

BAKE = (
    (
        "{p.name} wanted to bake {baked.a} for {p.poss} {rel}, {q.name}.",
        "It was {q.own} birthday, so {p.name} decided to make {baked.a}.",
        "{when}, {p.name} was hungry and wanted to make {baked.a}.",
    ),
    (
        "{p.Subj} put flour, sugar and butter on the table.",
        "{p.Subj} took out a bowl and a wooden spoon.",
        "{p.Subj} read the recipe twice.",
    ),
    (
        "But there were no eggs in the kitchen.",
        "However, the bag of flour was empty.",
        "Then {p.subj} saw that there was not enough sugar.",
    ),
    (
        "So {p.subj} went to the neighbour and asked for some.",
        "So {p.subj} ran to the shop, but it was closed. Luckily, a neighbour could help.",
        '"I can lend you some," said the {job} next door.',
    ),
    (
        "{p.Subj} mixed everything, put it into the oven and waited {minutes} minutes.",
        "{p.Subj} stirred until {p.poss} arm was tired, and then {p.subj} baked it.",
        "While it was in the oven, {p.subj} washed the dishes.",
    ),
    (
        "It smelled wonderful.",
        "The first one was burnt, but the second one was perfect.",
        "{p.Subj} had almost forgotten the time, but it was still good.",
        "It was a little too sweet, but that was fine.",
    ),
    (
        '"This is the best {baked} that I have ever eaten," said {q.name}.',
        "{q.name} ate {number} pieces and asked for more.",
        "They shared it with the neighbour who had helped.",
        "{q.name} was so happy that {q.subj} {joy}.",
    ),
)

LATE = (
    (
        "{morning}, {p.name} woke up too late.",
        "{p.own} clock had stopped in the night, so {p.subj} overslept.",
        "{p.name} had to be at the {place} at {hour} o'clock, but {p.subj} was still in bed.",
    ),
    (
        "{p.Subj} jumped out of bed and put on {p.poss} {clothing}.",
        "There was no time for breakfast, so {p.subj} took only {food.a}.",
        "{p.Subj} could not find {p.poss} {thing}, and that took {minutes} minutes more.",
    ),
    (
        "When {p.subj} came to the bus stop, the bus had already left.",
        "{p.Subj} ran down {street}, but the bus drove away.",
        "{p.Poss} bicycle had a flat tyre, so {p.subj} had to walk.",
    ),
    (
        "On the way {p.subj} met {q.name}, who was late too.",
        "Luckily, {q.name} came by in {a_colour} car and gave {p.obj} a lift.",
        '{q.name} called and asked, "Where are you?" "I am nearly there!" said {p.name}.',
    ),
    (
        "{p.Subj} arrived {minutes} minutes late, but nobody had noticed.",
        "When {p.subj} finally arrived, the door was locked: it was a holiday!",
        "At {hour} o'clock exactly {p.subj} ran through the door.",
    ),
    (
        "That evening {p.subj} bought a new clock.",
        '"Tomorrow I will get up earlier," {p.subj} promised.',
        "Since then, {p.name} has never been late again.",
        "",
    ),
)

LEARN = (
    (
        "{p.name} could not {skill}.",
        "All of {p.own} friends could {skill}, but {p.subj} could not.",
        "More than anything, {p.name} wanted to learn how to {skill}.",
    ),
    (
        "{p.Subj} tried it once and failed.",
        "{p.Subj} was afraid that people would laugh.",
        '"It is too difficult for me," {p.subj} said.',
        "",
    ),
    (
        '{p.Poss} {rel}, {q.name}, said, "I will teach you."',
        '"Nobody can do it on the first day," said {q.name}.',
        "{q.name} showed {p.obj} how to do it, slowly, step by step.",
    ),
    (
        "So they practised every {daytime} after {meal}.",
        "{p.Subj} practised for {number} weeks, even when {p.subj} was tired.",
        "The first week was hard, the second was easier, and the third was fun.",
    ),
    (
        "Sometimes {p.subj} wanted to give up, but {q.name} did not let {p.obj}.",
        "Once {p.subj} fell and hurt {p.refl}, but {p.subj} tried again.",
        "",
    ),
    (
        "Finally, {when}, {p.subj} did it all by {p.refl}.",
        "One day {p.subj} could {skill} better than {q.name}.",
        "At the end of the month {p.subj} could {skill} without any help.",
    ),
    (
        '"Now you can teach me something," {q.name} said.',
        "{p.Subj} felt {good} and {joy}.",
        "Now {p.subj} teaches others to {skill}.",
        "",
    ),
)

GIFT = (
    (
        "{p.name} wanted to buy {thing.a} for {p.poss} {rel}, {q.name}.",
        "{q.own} birthday was near, and {p.name} had no present yet.",
    ),
    (
        "The {thing} in the shop cost {price} coins, but {p.subj} had only {have}.",
        "{p.Subj} had {have} coins, and the {thing} in the window cost {price}.",
    ),
    (
        "{p.Subj} needed {missing} more, so {p.subj} looked for work.",
        "That was not enough: {missing} coins were missing.",
    ),
    (
        "{p.Subj} helped the {job} and got {missing} coins for it.",
        "{p.Subj} sold {p.poss} old {other} for exactly {missing} coins.",
        "{p.Subj} washed cars on {street} until {p.subj} had {missing} more.",
    ),
    (
        "Now {p.subj} had {price} coins and could buy it.",
        "With {price} coins in {p.poss} pocket, {p.subj} ran back to the shop.",
    ),
    (
        "{p.Subj} wrapped the {thing} in {colour} paper and tied a ribbon around it.",
        "{p.Subj} hid it {spot} until the birthday.",
        "",
    ),
    (
        'When {q.name} opened it, {q.subj} said, "It is just what I wanted!"',
        "{q.name} put the {thing} on the {furniture} and {joy}.",
        '"How did you know?" asked {q.name}. {p.name} only smiled.',
    ),
)

NOISE = (
    (
        "{p.name} woke up in the middle of the night, because there was a noise in the {room}.",
        "Late in the evening, {p.name} heard something in the {room}.",
    ),
    (
        "Knock, knock, knock.",
        "It sounded like footsteps.",
        "Something fell, and then it was quiet.",
        "First it was soft, and then it became louder and louder.",
    ),
    (
        "{p.Subj} was {bad}, but {p.subj} took {thing.a} and went to the door.",
        "{p.Subj} hid under the blanket and counted to {number}.",
        "{p.Subj} held {p.poss} breath and listened. Was it a ghost?",
    ),
    (
        '"Who is there?" {p.subj} called. Nobody answered.',
        "{p.Subj} opened the door a little and looked inside.",
        "{p.Subj} turned on the lamp in the hall.",
    ),
    (
        "It was only the window, which was open and moved in the wind.",
        'There stood {q.name} with {food.a} in {q.poss} hand. "I was hungry," {q.subj} said.',
        "The {other} had fallen from the shelf, and that was all.",
        "It was the old {furniture}, which had lost one of its feet.",
    ),
    (
        "{p.name} laughed and went back to bed.",
        '"So it was not a ghost," said {p.name}.',
        "{p.Subj} closed the door, and the noise stopped.",
    ),
)

RACE = (
    ("{when}, there was a race around the {trip}.", "Every year the children in {town} had a race to the {trip}."),
    (
        "{number} people took part, and {p.name} and {q.name} were among them.",
        "{p.name} had practised for weeks, but {q.name} had not practised at all.",
    ),
    (
        "At first {q.name} was in front, because {q.subj} was fast.",
        "{p.name} was last at the start, but {p.subj} was not {bad}.",
    ),
    (
        "Then {q.name} stopped to drink some water, and {p.name} passed {q.obj}.",
        "Then {q.name} slipped on the wet grass. {p.name} stopped and helped {q.obj}.",
        "Near the bridge {q.name} took the wrong way.",
    ),
    (
        "Because of that, {p.name} won and {q.name} came second.",
        "They crossed the line together, hand in hand.",
        "In the end {q.name} was first, {p.name} was second, and a {job} was third.",
    ),
    ("The winner got {prize.a}.", '"Well done!" shouted the crowd.', '"It is not about winning," {p.name} said.', ""),
)

SHARE = (
    (
        "{p.name} had {count_food}, but {q.name} had none.",
        "At lunch, {q.name} opened {q.poss} bag, and it was empty. {p.name} had {count_food}.",
    ),
    (
        "{q.name} looked {bad} and said nothing.",
        '"I forgot my lunch," {q.subj} said.',
        "{q.name} had not eaten since breakfast.",
    ),
    (
        "{p.name} thought about it. {p.Subj} was hungry too.",
        '"Do you want some?" asked {p.name}.',
        "{p.name} saw it and moved closer.",
    ),
    (
        "Then {p.subj} gave {q.obj} half of them, so both of them had {half}.",
        "So {p.subj} gave {half} to {q.obj} and kept {half}.",
    ),
    (
        "The next day {q.name} brought {other.a} for {p.obj}.",
        '"Tomorrow it is my turn," said {q.name}, and {q.subj} kept {q.poss} word.',
        "Since then they have been friends.",
    ),
    ("They ate together every {weekday}.", "Sharing made both of them {good}.", ""),
)

PLOTS = (LOST, BROKEN, RAIN, BAKE, LATE, LEARN, GIFT, NOISE, RACE, SHARE)
